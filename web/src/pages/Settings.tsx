/** The effective settings of the web process. */
import { api, ok } from '../api/client'
import { useLive } from '../live/resource'
import { Note, Search, Skeleton } from '../parts/basic'
import { Head } from '../parts/Head'
import { query, setQuery } from '../shell/router'
import { t } from '../strings'

interface Config {
  sections: { name: string; options: { key: string; value: string }[] }[]
}

export default function Settings() {
  const filter = query.value.get('q') ?? ''
  const setFilter = (q: string) => setQuery({ q })
  const live = useLive('settings', () => ok(api.GET('/api/v2/config')) as Promise<Config>, { every: 0 })
  const wanted = filter.toLowerCase()
  const sections = live.data.value?.sections.map((section) => ({ ...section, options: section.options.filter((one) => `${section.name}.${one.key} ${one.value}`.toLowerCase().includes(wanted)) })).filter((section) => section.options.length)
  return (
    <>
      <Head title={t.settings.title} />
      <div class="filters"><Search value={filter} placeholder={t.settings.filter} onInput={setFilter} /><span class="small dim">{t.settings.note}</span></div>
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!sections && !live.error.value && <Skeleton rows={14} />}
      <div class="settings">
        {sections?.map((section) => (
          <section key={section.name} class="card">
            <header><h2 class="mono">{section.name}</h2></header>
            <dl>
              {section.options.map((one) => (
                <div key={one.key} class="setting"><dt class="mono">{one.key}</dt><dd class="mono">{one.value === '' ? <span class="dim">–</span> : one.value}</dd></div>
              ))}
            </dl>
          </section>
        ))}
        {sections?.length === 0 && <p class="soft">{t.settings.none}</p>}
      </div>
    </>
  )
}
