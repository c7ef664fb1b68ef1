/** The runs of all DAGs. */
import { Head } from '../parts/Head'
import { ViewOnly } from '../parts/ViewOnly'
import { mayAnywhere } from '../shell/session'
import { t } from '../strings'
import { RunList } from './runList'

export default function Runs() {
  return (
    <>
      <Head title={t.runsList.title}>{!mayAnywhere('operator') && <ViewOnly text={t.rights.lookAny} />}</Head>
      <RunList dagId={null} />
    </>
  )
}
