/** The runs of all DAGs. */
import { Head } from '../parts/Head'
import { ViewOnly } from '../parts/ViewOnly'
import { mayAnywhere } from '../shell/session'
import { t } from '../strings'
import { RunList } from './runList'

export default function Runs() {
  const operator = mayAnywhere('operator')
  return (
    <>
      <Head title={t.runsList.title}>{!operator && <ViewOnly text={t.rights.lookAny} />}</Head>
      <RunList dagId={null} operator={operator} />
    </>
  )
}
